// Runs all tests of h2spec, the strict ones too, against a port of this machine.
//
//	driver PORT JUNIT_FILE [tls]
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	isTLS := len(os.Args) > 3
	ok, err := h2spec.Run(&config.Config{
		Host:         "127.0.0.1",
		Port:         port,
		Path:         "/",
		Timeout:      2 * time.Second,
		MaxHeaderLen: 4000,
		JUnitReport:  os.Args[2],
		Strict:       true,
		TLS:          isTLS,
		Insecure:     isTLS,
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}
