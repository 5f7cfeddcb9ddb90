-- await: waits until no transaction that writes is under way. The transaction is rolled back afterwards.
-- ? resource
INSERT INTO latchkit_fence (resource, fence, owner) VALUES (?, 0, '') ON CONFLICT (resource) DO UPDATE SET owner = owner
