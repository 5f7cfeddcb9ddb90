package quorum

import (
	_ "embed"

	"github.com/latchkit/latchkit/internal/redisstore"
)

//go:embed lua/rouse.lua
var rouseLua string

//go:embed lua/vote.lua
var voteLua string

//go:embed lua/confirm.lua
var confirmLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/release.lua
var releaseLua string

//go:embed lua/look.lua
var lookLua string

//go:embed lua/mark.lua
var markLua string

var (
	voteScript    = redisstore.NewScript(voteLua, rouseLua)
	confirmScript = redisstore.NewScript(confirmLua)
	renewScript   = redisstore.NewScript(renewLua)
	releaseScript = redisstore.NewScript(releaseLua, rouseLua)

	lookScript = redisstore.NewScript(lookLua)
	markScript = redisstore.NewScript(markLua)
)
