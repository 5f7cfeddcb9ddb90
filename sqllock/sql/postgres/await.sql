-- await: waits until no transaction is under way for a resource, and keeps others out. An upsert, because a row that
-- somebody else is inserting cannot be seen, but is waited for. The transaction is rolled back afterwards.
-- $1 resource
INSERT INTO latchkit_fence AS f (resource, fence, owner) VALUES ($1, 0, '')
ON CONFLICT (resource) DO UPDATE SET owner = f.owner
