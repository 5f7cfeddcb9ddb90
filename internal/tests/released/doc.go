// Package released tests the modules as users get them: as released versions from a module proxy,
// without the repository's go.work and replace directives.
package released
