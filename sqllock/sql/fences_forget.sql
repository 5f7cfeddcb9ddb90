-- fences_forget: removes the fences of a page.
-- ? resource before the page · ? last resource of the page · ? floor · ? age in s
DELETE FROM latchkit_fence WHERE resource > ? AND resource <= ? AND fence <= ? AND claimed_at < ago(?)
