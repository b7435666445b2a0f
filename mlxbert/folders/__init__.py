"""Operations on whole model folders: inspect, verify, convert, save."""
