-- floor_next: the largest fence that was claimed longer ago than an age, and is smaller than all
-- fences that were claimed since. The result is 0 or less if there is no such fence.
-- ? age in s · ? age in s
SELECT LEAST(
	COALESCE((SELECT MAX(fence) FROM latchkit_fence WHERE resource <> '' AND claimed_at < ago(?)), 0),
	COALESCE((SELECT MIN(fence) - 1 FROM latchkit_fence WHERE resource <> '' AND fence > 0 AND claimed_at >= ago(?)), 9223372036854775807))
