-- fences_all: the next resources that have a fence, in the order of resources.
-- ? resource before it
SELECT resource, fence FROM latchkit_fence WHERE resource > ? AND fence > 0 ORDER BY resource LIMIT 1000
