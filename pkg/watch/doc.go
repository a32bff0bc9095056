// SPDX-License-Identifier: Apache-2.0

// Package watch keeps the zone's store equal to a cluster's objects.
//
// The objects come from the API server ([Watch]) or from a folder ([Manifests]). Either fills a [zone.Store] and can
// report the endpoints of one service ([ServiceWatch]). The file convert.go converts each object; this package keeps none.
//
// A [Watch] guarantees:
//
//   - The store never goes back to an older state, even if the next API server's cache is behind: no list or watch
//     requests a version older than the newest one received (source.go).
//   - The state counts as confirmed only on the server's word: at the end of a list, by an event or bookmark of a watch
//     that has caught up, or if the server's newest version is the one already received (stream.go, source.go).
//   - A state without confirmation for most of the zone's limit is confirmed actively, with one or two requests
//     (timing.go). So a silent watch or a dead connection is detected within the limit.
//   - After the start, each resource is requested at most once a second. It is listed in full only if a watch cannot resume.
//   - A resource that the server forbids does not stop the others. It is retried about every half minute (feed.go).
package watch
