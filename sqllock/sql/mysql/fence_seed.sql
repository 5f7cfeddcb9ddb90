-- fence_seed: makes the row of the floor, which holds 0 then. At SERIALIZABLE each claim locks what
-- it reads. A row that is missing would be a gap there, and the first claims of all resources would
-- wait for each other.
INSERT IGNORE INTO latchkit_fence (resource, fence, owner) VALUES ('', 0, '')
