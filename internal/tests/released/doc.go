// Package released tests the modules as users get them: as released versions from a module proxy,
// in empty folders and with an empty module cache, without the repository's go.work and replace
// directives. The package also tests what watches the API between two releases.
package released
