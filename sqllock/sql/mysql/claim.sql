-- claim: writes fence and owner into the row of a resource, which stays locked until the
-- transaction ends. A larger fence in the row stays. If the fences are equal, the row keeps its
-- owner. The statement claimed shows whether the claim stands, because the number of changed rows
-- depends on the connection's settings.
-- Assignments take place from left to right, so fence comes last.
-- ? resource · ? fence · ? owner · ? fence · ? owner · ? fence · ? fence
INSERT INTO latchkit_fence (resource, fence, owner, claimed_at)
VALUES (?, ?, ?, CURRENT_TIMESTAMP(3))
ON DUPLICATE KEY UPDATE
	owner = IF(fence < ?, ?, owner),
	claimed_at = IF(fence <= ?, CURRENT_TIMESTAMP(3), claimed_at),
	fence = GREATEST(fence, ?)
