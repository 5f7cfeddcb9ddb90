-- share_row: makes sure that a resource has a row that share can lock.
-- ? resource
INSERT IGNORE INTO latchkit_fence (resource, fence, owner) VALUES (?, 0, '')
