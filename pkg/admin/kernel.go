// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net/url"
)

// A Kernel holds the functions of the page /kernel. Their results are rendered like the status. An error is a bad request and
// its text is the reply.
type Kernel struct {
	Status func() any
	Set    func(on bool) (any, error) // turns the answers of the kernel on or off
}

// post turns the answers of the kernel on or off.
func (k *Kernel) post(given url.Values) (any, error) {
	switch hits := given.Get("hits"); hits {
	case "on", "off":
		return k.Set(hits == "on")
	default:
		return nil, fmt.Errorf("hits %q: neither on nor off", hits)
	}
}
