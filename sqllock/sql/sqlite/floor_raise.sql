-- floor_raise: raises the floor, and never lowers it.
-- ? fence
INSERT INTO latchkit_fence (resource, fence, owner) VALUES ('', ?, '')
ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence, claimed_at = CURRENT_TIMESTAMP WHERE fence < excluded.fence
