# sets ATB_HOME_PATH and others
