// SPDX-License-Identifier: Apache-2.0

package nodelab_test

import (
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// nodelabLinks names the links of an open namespace.
func nodelabLinks(ns *os.File) ([]string, error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()))
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	links, err := handle.LinkList()
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names, err
}
