-- placeholder
SELECT 1
