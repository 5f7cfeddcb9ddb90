-- share_row: makes sure that a resource has a row that share can lock.
-- ? resource
INSERT INTO latchkit_fence (resource, fence, owner) VALUES (?, 0, '') ON CONFLICT (resource) DO NOTHING
