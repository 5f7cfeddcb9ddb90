-- The balances, and how many transfers Ann and Bob have made, at one moment.
SELECT version, body,
	(SELECT count(*) FROM scenes_results r WHERE r.run = d.run AND r.mode = d.mode AND r.who = 'Ann'),
	(SELECT count(*) FROM scenes_results r WHERE r.run = d.run AND r.mode = d.mode AND r.who = 'Bob')
FROM scenes_documents d WHERE d.run = $1 AND d.mode = $2
