/** Whether this is the demo, which shows a recording and needs no server. A constant: the other build contains nothing of the demo. */
declare const __DEMO__: boolean;

/** Address that the demo's bar names for installing; may be empty. */
declare const __INSTALL_URL__: string;
