// Package released tests the modules as users get them: as released versions from a module proxy,
// without the go.work and the replace directives of the repository.
package released
