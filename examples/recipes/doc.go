// Package recipes has one file for each job in docs/recipes. Each file has the code with which a
// service uses latchkit for one common job. Copy the code that you need.
//
// Each test runs two instances of the service on one Redis, with the real framework.
package recipes
