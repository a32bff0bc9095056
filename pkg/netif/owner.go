// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"hash/fnv"
	"strings"
)

const aliasPrefix = "node-cache "

// ownerOf returns whose link has this alias.
func ownerOf(alias string) (owner string, ours bool) {
	return strings.CutPrefix(alias, aliasPrefix)
}

// An address of lo has no alias, but it has a metric (IFA_RT_PRIORITY, Linux 4.18),
// that of the route to its prefix. A /32 and a /128 without that route have no use for it.
const (
	markOfAgents = 0x4e000000 // 'N', and the owner's hash below it
	markMask     = 0xff000000
)

func markOf(owner string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(owner)) // never fails
	sum := h.Sum32()
	return markOfAgents | (sum^sum>>24)&^uint32(markMask)
}

// marked says whether a metric is an agent's mark.
func marked(metric uint32) bool { return metric&markMask == markOfAgents }
