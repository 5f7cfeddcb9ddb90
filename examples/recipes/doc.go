// Package recipes has one file for each recipe of docs/recipes.md. The file has what a service
// must contain to use latchkit for one common job. Copy what you need.
//
// Each test runs two instances of the service on one Redis, with the real framework.
package recipes
