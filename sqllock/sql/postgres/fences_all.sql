-- fences_all: the next resources that have a fence, in the order of resources.
-- $1 resource before it
SELECT resource, fence FROM latchkit_fence WHERE resource > $1 AND fence > 0 ORDER BY resource LIMIT 1000
