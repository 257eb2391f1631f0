"""Programs that read recordings. The broker imports none of them."""
