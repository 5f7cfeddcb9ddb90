package main

import (
	"fmt"
	"log"

	"github.com/goccy/go-yaml"

	"github.com/latchkit/latchkit/ginlock"
)

// Rules that stand in YAML are converted by a library. It reads one document.
func Example_rulesInYAML() {
	text := []byte(`
POST /carts/:id/checkout: # a second click is refused at once
  key: cart:{claim.sub}:{param.id|int}
  wait: none
`)
	converted, err := yaml.YAMLToJSON(text)
	if err != nil {
		log.Fatal(err)
	}
	rules, err := ginlock.ParseRules(converted)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rules["POST /carts/:id/checkout"].Key)
	// Output: cart:{claim.sub}:{param.id|int}
}
