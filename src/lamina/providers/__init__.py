"""WHO answers, and how they count. Third-party libraries are imported here, when they are used."""
