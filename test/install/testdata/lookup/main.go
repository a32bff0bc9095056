// SPDX-License-Identifier: Apache-2.0

// Command lookup prints the addresses that Go's resolver finds for its arguments.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

func main() {
	for _, name := range os.Args[1:] {
		addrs, err := (&net.Resolver{PreferGo: true}).LookupHost(context.Background(), name)
		fmt.Println(name, addrs, err)
	}
}
