"""The filters of a consumer: the first offset, the chunks to read, the messages to deliver."""
