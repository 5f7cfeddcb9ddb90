-- claim: puts fence and owner into the row of a resource, unless a larger fence is there, or the same one of another owner:
-- look says which. As the first statement of a transaction it takes SQLite's only write lock; it comes to no stale snapshot,
-- also without _txlock=immediate.
-- ? resource · ? fence · ? owner
INSERT INTO latchkit_fence (resource, fence, owner) VALUES (?, ?, ?)
ON CONFLICT (resource) DO UPDATE
SET fence = excluded.fence, owner = excluded.owner, claimed_at = CURRENT_TIMESTAMP
WHERE fence < excluded.fence
