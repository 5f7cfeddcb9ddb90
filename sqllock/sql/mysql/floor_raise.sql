-- floor_raise: raises the floor, and never lowers it.
-- ? fence · ? fence · ? fence
INSERT INTO latchkit_fence (resource, fence, owner) VALUES ('', ?, '')
ON DUPLICATE KEY UPDATE claimed_at = IF(fence < ?, CURRENT_TIMESTAMP(3), claimed_at), fence = GREATEST(fence, ?)
