-- share_row: makes sure that a resource has a row that share can lock.
-- $1 resource
INSERT INTO latchkit_fence (resource, fence, owner) VALUES ($1, 0, '') ON CONFLICT (resource) DO NOTHING
