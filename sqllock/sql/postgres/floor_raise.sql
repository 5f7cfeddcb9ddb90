-- floor_raise: raises the floor, and never lowers it.
-- $1 fence
INSERT INTO latchkit_fence AS f (resource, fence, owner) VALUES ('', $1, '')
ON CONFLICT (resource) DO UPDATE SET fence = EXCLUDED.fence, claimed_at = now() WHERE f.fence < EXCLUDED.fence
