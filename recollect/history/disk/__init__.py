"""The files of a history: where they lie, what they hold, how they are read."""
