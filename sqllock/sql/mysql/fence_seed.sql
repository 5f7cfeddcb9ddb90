-- fence_seed: makes the row of the floor, with 0. At SERIALIZABLE each claim locks what it reads.
-- Without the row, a claim would lock a gap, and the first claims of all resources would wait for
-- each other.
INSERT IGNORE INTO latchkit_fence (resource, fence, owner) VALUES ('', 0, '')
