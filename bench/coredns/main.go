// SPDX-License-Identifier: Apache-2.0

// Command coredns is the CoreDNS the benchmark measures: the released module with only the plugins its Corefile names.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"

	"github.com/coredns/coredns/coremain"
)

func main() {
	coremain.Run()
}
