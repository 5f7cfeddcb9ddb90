-- floor: the floor, unless it was raised within an age; 0 if there is no such floor.
-- ? age in s
SELECT COALESCE(MAX(fence), 0) FROM latchkit_fence WHERE resource = '' AND claimed_at < datetime('now', '-' || ? || ' seconds')
