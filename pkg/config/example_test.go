// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"fmt"

	"github.com/nodecache/node-cache/pkg/config"
)

func ExampleParse() {
	c, err := config.Parse([]byte(`
forward:
- {zone: ".", to: [192.0.2.1, "tcp://192.0.2.2"]}
cache: {size: 128Mi}
`), config.Agent)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Forward[0].To, c.Cache.Size, c.Listen.Port)
	// Output: [192.0.2.1 tcp://192.0.2.2] 134217728 1053
}

func ExampleError() {
	_, err := config.Parse([]byte(`
listen: {port: 70000}
cache: {sise: 64Mi}
`), config.Agent)
	if problems, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range problems.Problems {
			fmt.Printf("%s (%s)\n", p, p.Hint)
		}
	}
	// Output:
	// listen.port: 70000: not between 1 and 65535 (the default is 1053)
	// cache.sise: unknown key (did you mean "size"?)
}
