-- fences_all: the next resource with a fence, by the order of resources.
-- ? resource before it
SELECT resource, fence FROM latchkit_fence WHERE resource > ? AND fence > 0 ORDER BY resource LIMIT 1000
