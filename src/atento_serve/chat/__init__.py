"""Chat templates of model folders: a conversation as the ids of a prompt; templates run in processes of their own."""
