"""Operations on whole model folders: inspecting and saving them."""
