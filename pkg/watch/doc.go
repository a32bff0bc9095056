// SPDX-License-Identifier: Apache-2.0

// Package watch keeps the zone's store equal to a cluster's objects.
//
// The objects come from the API server ([Watch]) or from a folder ([Manifests]); either fills a [zone.Store] and may follow the
// endpoints of one service ([Follow]). Convert.go has what becomes of each object; no object is kept here.
//
// What a [Watch] promises, and where it is seen to:
//
//   - Nothing newer is followed by something older, though the next server's cache may be behind: no list or watch
//     is asked for that may be older than what was seen (source.go).
//   - A view is called right only on the server's word: at the end of a list, by an event or a bookmark of a watch that has
//     caught up, or because the newest version is the one it has come to (stream.go, source.go).
//   - A view that nobody called right for some time is proven, by a request or two, before the zone's limit (pace.go). So a watch
//     that went silent, or a connection that died, is found within the limit.
//   - One resource is asked for once a second at most, after the start; a list of all of it only if a watch cannot go on.
//   - What the server forbids does not keep the rest from working, and is tried again each half minute or so (feed.go).
package watch
