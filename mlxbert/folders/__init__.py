"""Operations on whole model folders: inspecting, verifying, converting and saving them."""
