-- claim: writes fence and owner into the row of a resource, unless a larger fence is there, or the
-- same one of another owner, or the floor is not smaller: look shows which. As the first statement
-- of a transaction it takes SQLite's only write lock; it meets no stale snapshot, also without
-- _txlock=immediate.
-- ? resource · ? fence · ? owner · ? fence
INSERT INTO latchkit_fence (resource, fence, owner)
SELECT ?, ?, ? WHERE ? > coalesce((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
ON CONFLICT (resource) DO UPDATE
SET fence = excluded.fence, owner = excluded.owner, claimed_at = CURRENT_TIMESTAMP
WHERE fence < excluded.fence OR (fence = excluded.fence AND owner = excluded.owner)
