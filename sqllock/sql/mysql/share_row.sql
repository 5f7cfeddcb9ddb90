-- share_row: makes sure that a resource has a row, and locks the row against claims until the
-- transaction ends. InnoDB locks the row in share mode if it exists already. So share_row, and not
-- share, waits for a holder that has claimed the resource.
-- ? resource
INSERT IGNORE INTO latchkit_fence (resource, fence, owner) VALUES (?, 0, '')
