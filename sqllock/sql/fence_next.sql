-- fence_next: the next resource that has a fence, in the order of resources, and its fence. The
-- result is '' and 0 if there is none.
-- ? resource before it
SELECT COALESCE(MAX(resource), ''), COALESCE(MAX(fence), 0)
FROM (SELECT resource, fence FROM latchkit_fence WHERE resource > ? AND fence > 0 ORDER BY resource LIMIT 1) AS n
