-- claim: writes fence and owner into the row of a resource. It does not write if the row has a
-- larger fence, or the same fence of another owner, or if the floor is not smaller than the fence.
-- The statement look shows which of these is the reason. As the first statement of a transaction,
-- claim takes SQLite's only write lock. So the snapshot is never stale, even without
-- _txlock=immediate.
-- ? resource · ? fence · ? owner · ? fence
INSERT INTO latchkit_fence (resource, fence, owner)
SELECT ?, ?, ? WHERE ? > coalesce((SELECT fence FROM latchkit_fence WHERE resource = ''), 0)
ON CONFLICT (resource) DO UPDATE
SET fence = excluded.fence, owner = excluded.owner, claimed_at = CURRENT_TIMESTAMP
WHERE fence < excluded.fence OR (fence = excluded.fence AND owner = excluded.owner)
