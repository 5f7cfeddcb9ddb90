-- compare: 1, or 0 if the row of a resource or the floor has a larger fence.
-- ? resource · ? fence
SELECT COUNT(*) = 0 FROM latchkit_fence WHERE resource IN (?, '') AND fence > ?
