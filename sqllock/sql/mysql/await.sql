-- await: waits until no transaction is under way for a resource, and keeps others out. An upsert, because a row that
-- somebody else is inserting cannot be seen, but is waited for. The transaction is rolled back afterwards.
-- ? resource
INSERT INTO latchkit_fence (resource, fence, owner) VALUES (?, 0, '') ON DUPLICATE KEY UPDATE owner = owner
