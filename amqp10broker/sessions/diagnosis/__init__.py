"""Why a link, a channel or a consumer waits."""
